"""What tests start beside themselves: browsers, clusters, servers, commands."""
