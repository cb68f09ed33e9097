"""Define the settings of a proxy, and read them from rmq-proxy.json."""
