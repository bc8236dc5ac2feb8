-- Up to 500 pieces after a cursor. ARGV: prefix, id, cursor ('0' is the start)
return redis.call('XRANGE', P .. 'chunks:' .. ARGV[2], '(' .. ARGV[3], '+', 'COUNT', 500)
