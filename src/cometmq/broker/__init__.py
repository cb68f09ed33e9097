"""The broker: takes messages, stores them, hands them to consumer groups, keeps their offsets."""
