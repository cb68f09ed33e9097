"""Send messages: encode them, choose queues, repeat attempts; make requests and transactions, too."""
