"""Watch the clusters, and judge what needs attention."""
