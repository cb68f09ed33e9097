"""Serve the methods of gRPC's MessagingService: routes, sends, receives, acknowledgements, offsets, transactions."""
