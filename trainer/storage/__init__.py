"""Object stores, through fsspec: files are sent and fetched, nothing else is known of them."""
