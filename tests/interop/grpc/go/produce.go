package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

// produce sends `count` messages and prints the receipt of each; groups and delays take turns by the
// message's index. This client has neither priorities nor recalls.
func produce(args arguments) error {
	for _, name := range []string{"priorities", "recall"} {
		if args[name] != "" {
			return fmt.Errorf("this client has no %s", name)
		}
	}
	producer, err := started(func() (rocketmq.Producer, error) {
		return rocketmq.NewProducer(args.config(), rocketmq.WithTopics(args["topic"]))
	})
	if err != nil {
		return err
	}
	count := args.number("count", 10)
	for index := range count {
		receipts, err := producer.Send(context.Background(), message(args, index))
		if err != nil {
			return err
		}
		event{"index": index, "msgId": receipts[0].MessageID}.print("sent")
	}
	if err := producer.GracefulStop(); err != nil {
		return err
	}
	event{"sent": count, "failed": 0}.print("summary")
	return nil
}

// transact sends `count` half messages; `verdicts` (commit, rollback, or unknown for none) take turns. The
// broker asks about those without one, and the answer is `check`; about one that has its verdict, it is
// that verdict.
func transact(args arguments) error {
	resolutions := map[string]rocketmq.TransactionResolution{
		"commit": rocketmq.COMMIT, "rollback": rocketmq.ROLLBACK, "unknown": rocketmq.UNKNOWN,
	}
	checker := &rocketmq.TransactionChecker{
		Check: func(message *rocketmq.MessageView) rocketmq.TransactionResolution {
			received(message).print("checked")
			verdict := args.inTurn("verdicts", indexOf(message))
			if verdict == "unknown" {
				verdict = args.text("check", "commit")
			}
			return resolutions[verdict]
		},
	}
	producer, err := started(func() (rocketmq.Producer, error) {
		return rocketmq.NewProducer(args.config(),
			rocketmq.WithTopics(args["topic"]), rocketmq.WithTransactionChecker(checker))
	})
	if err != nil {
		return err
	}
	count := args.number("count", 3)
	for index := range count {
		transaction := producer.BeginTransaction()
		receipts, err := producer.SendWithTransaction(
			context.Background(), message(args, index), transaction)
		if err != nil {
			return err
		}
		event{"index": index, "msgId": receipts[0].MessageID}.print("sent")
		switch args.inTurn("verdicts", index) {
		case "commit":
			err = transaction.Commit()
		case "rollback":
			err = transaction.RollBack()
		}
		if err != nil {
			return err
		}
	}
	event{}.print("all-sent")
	awaitEnd()
	if err := producer.GracefulStop(); err != nil {
		return err
	}
	event{"sent": count}.print("summary")
	return nil
}

func message(args arguments, index int) *rocketmq.Message {
	prefix := args.text("prefix", "m")
	made := &rocketmq.Message{Topic: args["topic"], Body: body(index, args.number("size", 64))}
	made.SetKeys(fmt.Sprintf("%s-%d", prefix, index), "all-"+prefix)
	made.AddProperty("index", strconv.Itoa(index))
	made.AddProperty("note", "grün € 😀")
	if tag := args.inTurn("tags", index); tag != "" {
		made.SetTag(tag)
	}
	if group := args.inTurn("groups", index); group != "" {
		made.SetMessageGroup(group)
	}
	if delay, err := strconv.Atoi(args.inTurn("delays-ms", index)); err == nil {
		made.SetDelayTimestamp(time.Now().Add(time.Duration(delay) * time.Millisecond))
	}
	return made
}

// body is the pattern every client program of the suite sends.
func body(index, size int) []byte {
	bytes := make([]byte, size)
	for j := range bytes {
		bytes[j] = byte(index*31 + j*7 + j/256)
	}
	return bytes
}
