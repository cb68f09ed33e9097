"""Keep what one process knows of its clients: settings, streams, open questions, handles under renewal."""
