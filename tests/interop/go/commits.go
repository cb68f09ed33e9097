package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// commitTeller prints an event for each offset that the client has sent to a broker, which the client
// itself tells its log alone. Other lines are dropped but for errors.
type commitTeller struct{}

var queueNamed = regexp.MustCompile(`topic=([^,]*), .*queueId=(\d+)`)

func tellCommits() { rlog.SetLogger(commitTeller{}) }

func (commitTeller) Info(msg string, fields map[string]interface{}) {
	if msg != "update offset to broker success" {
		return
	}
	found := queueNamed.FindStringSubmatch(fmt.Sprint(fields[rlog.LogKeyMessageQueue]))
	if found == nil {
		fail(fmt.Errorf("the client logs its commits otherwise: %v", fields))
	}
	committed := newEvent("committed")
	committed["topic"] = found[1]
	committed["queueId"], _ = strconv.Atoi(found[2])
	committed["offset"] = fields["offset"]
	committed.print()
}

func (commitTeller) Debug(string, map[string]interface{})   {}
func (commitTeller) Warning(string, map[string]interface{}) {}
func (commitTeller) Level(string)                           {}
func (commitTeller) OutputPath(string) error                { return nil }

func (commitTeller) Error(msg string, fields map[string]interface{}) {
	fmt.Fprintln(os.Stderr, msg, fields)
}

func (t commitTeller) Fatal(msg string, fields map[string]interface{}) { t.Error(msg, fields) }
