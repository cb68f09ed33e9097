"""Keep delayed and timed messages until they are due, deliver them, recall them."""
