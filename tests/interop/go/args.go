package main

import (
	"fmt"
	"strconv"
	"strings"
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

func (a arguments) number(name string, otherwise int) int {
	if value, found := a[name]; found {
		if number, err := strconv.Atoi(value); err == nil {
			return number
		}
	}
	return otherwise
}
