"""Know the users of the console: accounts, logins, sessions, and the log of their actions."""
