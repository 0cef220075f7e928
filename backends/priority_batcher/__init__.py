"""TGI's batching rule as an engine, with priority classes: `backend` is the gateway's side."""
