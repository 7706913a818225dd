"""The engine from the gateway's side: endpoints, responses, and events."""
