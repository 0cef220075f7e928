"""What the gateway tells its operator: metrics, traces, logs. Every name in one table each."""
