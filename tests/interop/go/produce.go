package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const asyncInFlight = 64

// production is one run of the produce scenario: `count` messages in one mode.
type production struct {
	producer rocketmq.Producer
	topic    string
	prefix   string
	tags     []string
	first    int
	count    int
	size     int
	queue    int
	delays   []string
	failed   atomic.Int64
}

func produce(args arguments) error {
	options := []producer.Option{
		producer.WithNameServer(primitive.NamesrvAddr{args.text("namesrv", "")}),
		producer.WithGroupName(args.text("group", "interop-producer")),
		producer.WithInstanceName(args.text("member", "producer")),
		producer.WithCredentials(args.credentials()),
		// One that is repeated because its answer was late would come twice.
		producer.WithSendMsgTimeout(60 * time.Second),
		producer.WithRetry(2),
	}
	queue := args.number("queue", -1)
	if queue >= 0 {
		options = append(options, producer.WithQueueSelector(queueSelector(queue)))
	}
	client, err := rocketmq.NewProducer(options...)
	if err != nil {
		return err
	}
	if err := client.Start(); err != nil {
		return err
	}
	run := &production{
		producer: client,
		topic:    args.text("topic", ""),
		prefix:   args.text("prefix", "m"),
		tags:     strings.Split(args.text("tags", ""), ","),
		first:    args.number("first", 0),
		count:    args.number("count", 10),
		size:     args.number("size", 64),
		delays:   strings.Split(args.text("delays", ""), ","),
	}
	if err := run.send(args.text("mode", "sync"), args.number("batch", 10)); err != nil {
		return err
	}
	if err := client.Shutdown(); err != nil {
		return err
	}
	summary := newEvent("summary")
	summary["sent"] = run.count - int(run.failed.Load())
	summary["failed"] = run.failed.Load()
	summary.print()
	return nil
}

func (p *production) send(mode string, batch int) error {
	switch mode {
	case "sync":
		return p.sendBatches(1)
	case "batch":
		return p.sendBatches(batch)
	case "async":
		return p.sendAsync()
	case "oneway":
		return p.sendOneWay()
	}
	return fmt.Errorf("unknown mode %s", mode)
}

func (p *production) sendBatches(batch int) error {
	for i := p.first; i < p.first+p.count; i += batch {
		messages := []*primitive.Message{}
		for j := i; j < min(i+batch, p.first+p.count); j++ {
			messages = append(messages, p.message(j))
		}
		result, err := p.producer.SendSync(context.Background(), messages...)
		if err != nil {
			return err
		}
		printSent(i, len(messages), result)
	}
	return nil
}

func (p *production) sendAsync() error {
	var done sync.WaitGroup
	inFlight := make(chan struct{}, asyncInFlight)
	for i := p.first; i < p.first+p.count; i++ {
		inFlight <- struct{}{}
		done.Add(1)
		answered := func(_ context.Context, result *primitive.SendResult, err error) {
			if err != nil {
				p.failed.Add(1)
				failure := newEvent("failed")
				failure["index"] = i
				failure["error"] = err.Error()
				failure.print()
			} else {
				printSent(i, 1, result)
			}
			<-inFlight
			done.Done()
		}
		if err := p.producer.SendAsync(context.Background(), answered, p.message(i)); err != nil {
			return err
		}
	}
	done.Wait()
	return nil
}

func (p *production) sendOneWay() error {
	for i := p.first; i < p.first+p.count; i++ {
		if err := p.producer.SendOneWay(context.Background(), p.message(i)); err != nil {
			return err
		}
		sent := newEvent("sent")
		sent["index"] = i
		sent["count"] = 1
		sent.print()
	}
	// Nothing answers a one-way request: give the sockets time before they close.
	time.Sleep(time.Second)
	return nil
}

func (p *production) message(index int) *primitive.Message {
	message := primitive.NewMessage(p.topic, body(index, p.size))
	if tag := p.tags[index%len(p.tags)]; tag != "" {
		message.WithTag(tag)
	}
	message.WithKeys([]string{fmt.Sprintf("%s-%d", p.prefix, index), "all-" + p.prefix})
	message.WithProperty("index", strconv.Itoa(index))
	message.WithProperty("note", "grün € 😀")
	message.Flag = int32(index % 7)
	delay(message, p.delays[index%len(p.delays)])
	return message
}

// delay makes the message wait: `level:2`, `sec:1`, `ms:1500`, `at:2000` for so many ms from now.
func delay(message *primitive.Message, wanted string) {
	kind, text, _ := strings.Cut(wanted, ":")
	value, _ := strconv.Atoi(text)
	switch kind {
	case "level":
		message.WithDelayTimeLevel(value)
	case "sec":
		message.WithProperty("TIMER_DELAY_SEC", text)
	case "ms":
		message.WithProperty("TIMER_DELAY_MS", text)
	case "at":
		at := time.Now().UnixMilli() + int64(value)
		message.WithProperty("TIMER_DELIVER_MS", strconv.FormatInt(at, 10))
	}
}

// body is the pattern every client program of the suite sends.
func body(index, size int) []byte {
	bytes := make([]byte, size)
	for j := range bytes {
		bytes[j] = byte(index*31 + j*7 + j/256)
	}
	return bytes
}

// queueSelector sends every message to the queue of its number.
type queueSelector int

func (s queueSelector) Select(
	_ *primitive.Message, queues []*primitive.MessageQueue, _ string,
) *primitive.MessageQueue {
	for _, queue := range queues {
		if queue.QueueId == int(s) {
			return queue
		}
	}
	return nil
}

func printSent(index, count int, result *primitive.SendResult) {
	sent := newEvent("sent")
	sent["index"] = index
	sent["count"] = count
	sent["status"] = map[bool]string{true: "SEND_OK"}[result.Status == primitive.SendOK]
	sent["msgId"] = result.MsgID
	sent["offsetMsgId"] = result.OffsetMsgID
	sent["topic"] = result.MessageQueue.Topic
	sent["brokerName"] = result.MessageQueue.BrokerName
	sent["queueId"] = result.MessageQueue.QueueId
	sent["queueOffset"] = result.QueueOffset
	sent.print()
}
