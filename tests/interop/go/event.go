package main

import (
	"encoding/json"
	"hash/crc32"
	"os"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

type event map[string]any

var printing sync.Mutex

// newEvent starts an event. Its name is printed first: readers know an event by that.
func newEvent(name string) event {
	return event{"event": name}
}

func (e event) print() {
	name := e["event"].(string)
	delete(e, "event")
	rest, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	line := []byte(`{"event":"` + name + `"`)
	if len(rest) > 2 {
		line = append(line, ',')
	}
	line = append(append(line, rest[1:]...), '\n')
	printing.Lock()
	defer printing.Unlock()
	os.Stdout.Write(line)
}

// withMessage adds everything a test compares of a received message; the body as size and CRC-32.
func (e event) withMessage(message *primitive.MessageExt) event {
	e["topic"] = message.Topic
	e["msgId"] = message.MsgId
	e["offsetMsgId"] = message.OffsetMsgId
	e["brokerName"] = message.Queue.BrokerName
	e["queueId"] = message.Queue.QueueId
	e["queueOffset"] = message.QueueOffset
	e["commitLogOffset"] = message.CommitLogOffset
	e["tags"] = message.GetTags()
	e["keys"] = message.GetKeys()
	e["properties"] = message.GetProperties()
	e["size"] = len(message.Body)
	e["crc32"] = crc32.ChecksumIEEE(message.Body)
	e["flag"] = message.Flag
	e["sysFlag"] = message.SysFlag
	e["bornTimestamp"] = message.BornTimestamp
	e["storeTimestamp"] = message.StoreTimestamp
	e["reconsumeTimes"] = message.ReconsumeTimes
	return e
}
