"""Define the bodies of requests and responses, a module for each subject."""
