"""What a client of a running gateway may meet. Apart from the client, whose HTTP library takes long to load."""

ENDED = ("completed", "failed", "expired", "cancelled")  # jobs and batches


class GatewayError(Exception):
    """The gateway refused a request, or does not answer. Its text says what to do."""


class NotThereError(GatewayError):
    """The gateway knows nothing of that name."""
