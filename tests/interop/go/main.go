// Client program of the interop suite: goclient <scenario> --name=value ..., JSON lines on
// standard output. The scenarios and their events are those of the Java program.
package main

import (
	"fmt"
	"os"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func main() {
	// The client logs to standard error by way of its level only; errors are enough here.
	rlog.SetLogLevel("error")
	if len(os.Args) < 2 {
		fail(fmt.Errorf("usage: goclient <scenario> --name=value ..."))
	}
	args, err := parseArgs(os.Args[2:])
	if err != nil {
		fail(err)
	}
	switch os.Args[1] {
	case "produce":
		err = produce(args)
	case "consume":
		err = consume(args)
	default:
		err = fmt.Errorf("unknown scenario %s", os.Args[1])
	}
	if err != nil && args.text("may-fail", "false") == "true" {
		failure := newEvent("failed")
		failure["error"] = err.Error()
		failure.print()
		newEvent("summary").print()
	} else if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
