-- Keep a batch, or with 0 ms leave it to the next. ARGV: prefix, id, owner, lease ms. Returns 1 | 0 (another's)
if not is_mine() then return 0 end
redis.call('ZADD', P .. 'batches:active', 'XX', whole(now_ms() + tonumber(ARGV[4])), id)
return 1
