"""What a broker tells monitoring systems; see decision 101."""
