-- Take batches that nobody drives. ARGV: prefix, '', owner, lease ms, most. Returns their ids
local now, taken = now_ms(), {}
for _, due in ipairs(redis.call('ZRANGEBYSCORE', P .. 'batches:active', '-inf', whole(now), 'LIMIT', 0, ARGV[5])) do
  if redis.call('EXISTS', P .. 'batch:' .. due) == 0 then
    redis.call('ZREM', P .. 'batches:active', due)
  else
    redis.call('ZADD', P .. 'batches:active', whole(now + tonumber(ARGV[4])), due)
    redis.call('HSET', P .. 'batch:' .. due, 'owner', ARGV[3])
    taken[#taken + 1] = due
  end
end
return taken
