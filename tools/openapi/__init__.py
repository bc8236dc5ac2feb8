"""Makes the OpenAPI document: what each address takes and gives, with the bounds of the code that checks it."""
