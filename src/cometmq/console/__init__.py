"""The web console: pages on a cluster, rendered at the server, and actions on it.

It has no logic of its own: all that it knows and does goes through `cometmq.admin`. It needs the extra
`console`. `cometmq console` runs it, and `cometmq dev` beside its servers.
"""
