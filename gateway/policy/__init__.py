"""Policy files: schema, loading with positions, and `decide`, the one pure function that routes."""
