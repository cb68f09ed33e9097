"""RocketMQ's ACL 1.0: accounts and permissions in the files `plain_acl.yml` and `conf/acl`."""
