package main

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

// consume runs a push consumer that prints every message until standard input closes. Of `fail-times`,
// which take turns by a message's index, each says how often the message fails, of `delay-ms`, which do the
// same, for how long the listener works.
func consume(args arguments) error {
	member := args.text("member", "member")
	var count atomic.Int64
	consumer, err := started(func() (rocketmq.PushConsumer, error) {
		return rocketmq.NewPushConsumer(args.config(),
			rocketmq.WithPushAwaitDuration(args.seconds("await-s", 5)),
			rocketmq.WithPushSubscriptionExpressions(args.subscriptions()),
			rocketmq.WithPushConsumptionThreadCount(4),
			rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{
				Consume: func(message *rocketmq.MessageView) rocketmq.ConsumerResult {
					e := received(message)
					e["member"] = member
					e.print("message")
					count.Add(1)
					delay, _ := strconv.Atoi(args.inTurn("delay-ms", indexOf(message)))
					time.Sleep(time.Duration(delay) * time.Millisecond)
					if args.fails(message) {
						return rocketmq.FAILURE
					}
					return rocketmq.SUCCESS
				},
			}))
	})
	if err != nil {
		return err
	}
	event{"member": member}.print("started")
	awaitEnd()
	if err := consumer.GracefulStop(); err != nil {
		return err
	}
	event{"received": count.Load()}.print("summary")
	return nil
}

// receive runs a simple consumer until it has acknowledged `expected` messages or, without that, until
// standard input closes. A message that fails is made visible again after `hide-s`. With `extend-s` each
// other message is hidden so long anew, and held for `hold-ms`, before its acknowledgement.
func receive(args arguments) error {
	consumer, err := started(func() (rocketmq.SimpleConsumer, error) {
		return rocketmq.NewSimpleConsumer(args.config(),
			rocketmq.WithSimpleAwaitDuration(args.seconds("await-s", 5)),
			rocketmq.WithSimpleSubscriptionExpressions(args.subscriptions()))
	})
	if err != nil {
		return err
	}
	event{}.print("started")
	var ended atomic.Bool
	go func() {
		awaitEnd()
		ended.Store(true)
	}()
	expected := args.number("expected", 0)
	done := 0
	for done < expected || expected == 0 && !ended.Load() {
		messages, err := consumer.Receive(context.Background(), 16, args.seconds("invisible-s", 30))
		if err != nil {
			// Where nothing came, it says so by an error.
			var status *rocketmq.ErrRpcStatus
			if errors.As(err, &status) && status.Code == int32(v2.Code_MESSAGE_NOT_FOUND) {
				continue
			}
			return err
		}
		for _, message := range messages {
			acknowledged, err := handle(args, consumer, message)
			if err != nil {
				return err
			}
			done += acknowledged
		}
	}
	if err := consumer.GracefulStop(); err != nil {
		return err
	}
	event{"received": done}.print("summary")
	return nil
}

// handle does with a message what the arguments say, and returns how many it has acknowledged.
func handle(
	args arguments, consumer rocketmq.SimpleConsumer, message *rocketmq.MessageView,
) (int, error) {
	received(message).print("message")
	if args.fails(message) {
		return 0, consumer.ChangeInvisibleDuration(message, args.seconds("hide-s", 1))
	}
	if extension := args.seconds("extend-s", 0); extension > 0 {
		if err := consumer.ChangeInvisibleDuration(message, extension); err != nil {
			return 0, err
		}
		time.Sleep(time.Duration(args.number("hold-ms", 0)) * time.Millisecond)
	}
	if err := consumer.Ack(context.Background(), message); err != nil {
		return 0, err
	}
	event{"msgId": message.GetMessageId()}.print("acknowledged")
	return 1, nil
}
