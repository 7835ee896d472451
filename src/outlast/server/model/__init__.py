"""The types of requests and responses; the OpenAPI document is made of them."""
