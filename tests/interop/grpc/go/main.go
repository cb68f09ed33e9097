// Client program of the interop suite over RocketMQ's Go client for gRPC: goclient <scenario>
// --name=value ..., JSON lines on standard output. Its scenarios and events are those of the Java
// program, `java/src/grpc`. One that goes on until its end is asked for ends when standard input closes.
package main

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

// The client's default is three seconds. If a busy machine answers a send later, the client sends it again, and there
// are two messages. The other client programs have the same timeout.
const requestTimeout = 20 * time.Second

// arguments of the form --name=value.
type arguments map[string]string

func (a arguments) text(name, otherwise string) string {
	if value, found := a[name]; found {
		return value
	}
	return otherwise
}

func (a arguments) number(name string, otherwise int) int {
	if number, err := strconv.Atoi(a[name]); err == nil {
		return number
	}
	return otherwise
}

// seconds is the duration that an argument gives as a number of them.
func (a arguments) seconds(name string, otherwise int) time.Duration {
	return time.Duration(a.number(name, otherwise)) * time.Second
}

// inTurn is the value at an index of a list of values that take turns.
func (a arguments) inTurn(name string, index int) string {
	all := strings.Split(a[name], ",")
	return all[index%len(all)]
}

// fails says whether a message of this index fails its consumer once more.
func (a arguments) fails(message *rocketmq.MessageView) bool {
	times, _ := strconv.Atoi(a.inTurn("fail-times", indexOf(message)))
	return int(message.GetDeliveryAttempt()) <= times
}

// config with a group of consumers, or none. The client wants credentials also where none are asked for.
func (a arguments) config() *rocketmq.Config {
	return &rocketmq.Config{
		Endpoint:      a["endpoints"],
		NameSpace:     a["namespace"],
		ConsumerGroup: a["group"],
		Credentials: &credentials.SessionCredentials{
			AccessKey: a.text("access-key", "interop"), AccessSecret: a.text("secret-key", "interop"),
		},
	}
}

// started makes a client and starts it.
func started[T interface {
	Start() error
	SetRequestTimeout(time.Duration)
}](make func() (T, error)) (T, error) {
	client, err := make()
	if err != nil {
		return client, err
	}
	client.SetRequestTimeout(requestTimeout)
	return client, client.Start()
}

func (a arguments) subscriptions() map[string]*rocketmq.FilterExpression {
	kind := rocketmq.TAG
	if a["sql"] == "true" {
		kind = rocketmq.SQL92
	}
	return map[string]*rocketmq.FilterExpression{
		a["topic"]: rocketmq.NewFilterExpressionWithType(a.text("expression", "*"), kind),
	}
}

type event map[string]any

var printing sync.Mutex

// print writes an event's line. Its name comes first: readers know an event by that.
func (e event) print(name string) {
	rest, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	line := []byte(`{"event":"` + name + `"`)
	if len(rest) > 2 {
		line = append(line, ',')
	}
	printing.Lock()
	defer printing.Unlock()
	os.Stdout.Write(append(append(line, rest[1:]...), '\n'))
}

func indexOf(message *rocketmq.MessageView) int {
	index, _ := strconv.Atoi(message.GetProperties()["index"])
	return index
}

// received has everything that a test compares of a received message; the body as size and CRC-32.
func received(message *rocketmq.MessageView) event {
	e := event{
		"topic":             message.GetTopic(),
		"tags":              message.GetTag(),
		"keys":              strings.Join(message.GetKeys(), " "),
		"properties":        message.GetProperties(),
		"size":              len(message.GetBody()),
		"crc32":             crc32.ChecksumIEEE(message.GetBody()),
		"msgId":             message.GetMessageId(),
		"group":             message.GetMessageGroup(),
		"bornHost":          message.GetBornHost(),
		"deliveryTimestamp": nil,
		"attempt":           message.GetDeliveryAttempt(),
		"at":                time.Now().UnixMilli(),
	}
	if at := message.GetDeliveryTimestamp(); at != nil {
		e["deliveryTimestamp"] = at.UnixMilli()
	}
	return e
}

// awaitEnd returns when standard input closes.
func awaitEnd() { io.Copy(io.Discard, os.Stdin) }

func main() {
	// The client logs to a file below the home directory.
	os.Setenv(rocketmq.CLIENT_LOG_ROOT, os.Getenv("HOME"))
	os.Setenv(rocketmq.CLIENT_LOG_LEVEL, "warn")
	rocketmq.ResetLogger()
	args := arguments{}
	for _, arg := range os.Args[2:] {
		name, value, found := strings.Cut(arg, "=")
		if !found || !strings.HasPrefix(name, "--") {
			fail(fmt.Errorf("not --name=value: %s", arg))
		}
		args[name[2:]] = value
	}
	rocketmq.EnableSsl = args["tls"] == "true"
	run, found := map[string]func(arguments) error{
		"produce": produce, "transact": transact, "consume": consume, "receive": receive,
	}[os.Args[1]]
	if !found {
		fail(fmt.Errorf("unknown scenario %s", os.Args[1]))
	}
	if err := run(args); err != nil {
		if args["may-fail"] != "true" {
			fail(err)
		}
		event{"error": err.Error(), "cause": nil}.print("failed")
		event{"failed": 1}.print("summary")
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
