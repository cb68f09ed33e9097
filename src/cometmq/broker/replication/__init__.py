"""The broker's part in replication: the requests that a slave serves, and the tables that it copies
from its master.
"""
