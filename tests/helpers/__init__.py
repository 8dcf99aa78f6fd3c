"""What several tests share: small sources, small indexes, failing disks, servers."""
