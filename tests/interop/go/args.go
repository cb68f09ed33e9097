package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// arguments of the form --name=value.
type arguments map[string]string

func parseArgs(argv []string) (arguments, error) {
	args := arguments{}
	for _, arg := range argv {
		name, value, found := strings.Cut(arg, "=")
		if !found || !strings.HasPrefix(name, "--") {
			return nil, fmt.Errorf("not --name=value: %s", arg)
		}
		args[name[2:]] = value
	}
	return args, nil
}

func (a arguments) text(name, otherwise string) string {
	if value, found := a[name]; found {
		return value
	}
	return otherwise
}

// credentials by which a client signs; without an access key it does not.
func (a arguments) credentials() primitive.Credentials {
	return primitive.Credentials{
		AccessKey: a.text("access-key", ""), SecretKey: a.text("secret-key", ""),
	}
}

func (a arguments) number(name string, otherwise int) int {
	if value, found := a[name]; found {
		if number, err := strconv.Atoi(value); err == nil {
			return number
		}
	}
	return otherwise
}
