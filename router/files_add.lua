-- A file is in the object store. ARGV: prefix, id, about (JSON), bytes, path, ttl ms. Returns {created, expires}
return add_file(ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), now_ms())
