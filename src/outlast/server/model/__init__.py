"""What goes over the wire, as types: the OpenAPI document is made of these."""
