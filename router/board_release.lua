-- Give the run lease back; the job waits again, for so many ms at least. An orderly exit takes its delivery back, too.
-- ARGV: prefix, id, owner, give the delivery back (1 | 0), wait ms. Returns now ms, or false when it is another's
local job = KEYS[1]
if redis.call('HGET', job, 'owner') ~= ARGV[3] then return false end
local now = now_ms()
redis.call('HDEL', job, 'owner', 'lease', 'open')
redis.call('HSET', job, 'state', 'queued', 'not_before', whole(now + tonumber(ARGV[5])))
redis.call('ZREM', P .. 'running', ARGV[2])
if ARGV[4] == '1' and tonumber(redis.call('HGET', job, 'deliveries') or 0) > 0 then
  redis.call('HINCRBY', job, 'deliveries', -1)
end
return whole(now)
