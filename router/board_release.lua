-- Give the run lease back; the job waits again, for so many ms at least. An orderly exit takes back the delivery that
-- its own start counted.
-- ARGV: prefix, id, owner, give the delivery back (1 | 0), wait ms. Returns now ms, or false when it is another's
local job = KEYS[1]
if redis.call('HGET', job, 'owner') ~= ARGV[3] then return false end
local now = now_ms()
if ARGV[4] == '1' and redis.call('HGET', job, 'counted') == ARGV[3] then redis.call('HINCRBY', job, 'deliveries', -1) end
redis.call('HDEL', job, 'owner', 'lease', 'open', 'counted')
not_submitted(job, ARGV[2])
redis.call('HSET', job, 'state', 'queued', 'not_before', whole(now + tonumber(ARGV[5])))
redis.call('ZREM', P .. 'running', ARGV[2])
return whole(now)
