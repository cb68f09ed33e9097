package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// consume runs push consumers of one group and prints every message. They run until `expected`
// messages came, until `timeout-ms` passed, or, with `until-stdin=true`, until standard input
// closes. Of `fail-times`, which take turns by a message's index, each says how often the message
// fails.
//
// With `tell-commits=true` an event tells of each offset that was sent.
func consume(args arguments) error {
	if args.text("tell-commits", "false") == "true" {
		tellCommits()
	}
	run := &consumption{
		expected:  int64(args.number("expected", 1<<31)),
		delay:     time.Duration(args.number("delay-ms", 0)) * time.Millisecond,
		failTimes: strings.Split(args.text("fail-times", "0"), ","),
		done:      make(chan struct{}),
	}
	members := []rocketmq.PushConsumer{}
	count := args.number("members", 1)
	for i := 0; i < count; i++ {
		name := args.text("member", "member")
		if count > 1 {
			name = fmt.Sprintf("%s-%d", name, i)
		}
		member, err := run.start(args, name)
		if err != nil {
			return err
		}
		members = append(members, member)
		started := newEvent("started")
		started["member"] = name
		started.print()
	}
	run.await(args)
	// The listener counts a message before its client has noted it as consumed, and the client tells
	// nobody when it has: a shutdown in between would leave an older offset at the broker.
	time.Sleep(time.Second)
	for _, member := range members {
		if err := member.Shutdown(); err != nil {
			return err
		}
	}
	summary := newEvent("summary")
	summary["received"] = run.received.Load()
	summary.print()
	return nil
}

type consumption struct {
	expected  int64
	delay     time.Duration
	failTimes []string
	received  atomic.Int64
	done      chan struct{}
	once      sync.Once
}

func (c *consumption) fails(message *primitive.MessageExt) bool {
	index, _ := strconv.Atoi(message.GetProperty("index"))
	times, _ := strconv.Atoi(c.failTimes[index%len(c.failTimes)])
	return int(message.ReconsumeTimes) < times
}

func (c *consumption) await(args arguments) {
	if args.text("until-stdin", "false") == "true" {
		io.Copy(io.Discard, os.Stdin)
		return
	}
	select {
	case <-c.done:
	case <-time.After(time.Duration(args.number("timeout-ms", 60000)) * time.Millisecond):
	}
}

func (c *consumption) start(args arguments, name string) (rocketmq.PushConsumer, error) {
	from := consumer.ConsumeFromFirstOffset
	if args.text("from", "first") == "last" {
		from = consumer.ConsumeFromLastOffset
	}
	member, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer(primitive.NamesrvAddr{args.text("namesrv", "")}),
		consumer.WithGroupName(args.text("group", "")),
		consumer.WithInstance(name),
		consumer.WithCredentials(args.credentials()),
		consumer.WithConsumerOrder(args.text("orderly", "false") == "true"),
		consumer.WithConsumeFromWhere(from),
		consumer.WithMaxReconsumeTimes(int32(args.number("max-reconsume-times", -1))),
	)
	if err != nil {
		return nil, err
	}
	selector := consumer.MessageSelector{
		Type: consumer.TAG, Expression: args.text("expression", "*"),
	}
	listener := func(
		_ context.Context, messages ...*primitive.MessageExt,
	) (consumer.ConsumeResult, error) {
		failed := false
		for _, message := range messages {
			failed = failed || c.fails(message)
			received := newEvent("message")
			received["member"] = name
			received.withMessage(message).print()
			time.Sleep(c.delay)
			if c.received.Add(1) >= c.expected {
				c.once.Do(func() { close(c.done) })
			}
		}
		if failed && args.text("orderly", "false") == "true" {
			return consumer.SuspendCurrentQueueAMoment, nil
		}
		if failed {
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := member.Subscribe(args.text("topic", ""), selector, listener); err != nil {
		return nil, err
	}
	return member, member.Start()
}
