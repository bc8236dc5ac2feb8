-- The backend has taken the job: no lease any more, a collector looks at it. ARGV: prefix, id, owner, reference, check in ms,
--   the job as it is known from now on (with where its body lies), its backend
-- Returns 1 | 0 (it is another's)
local job = KEYS[1]
if redis.call('HGET', job, 'owner') ~= ARGV[3] then return 0 end
if redis.call('HGET', job, 'counted') == ARGV[3] then -- its process outlived the call: that delivery was an orderly one
  redis.call('HINCRBY', job, 'deliveries', -1)
end
redis.call('HDEL', job, 'owner', 'lease', 'counted')
redis.call('HSET', job, 'submitted', ARGV[4], 'about', ARGV[6], 'kept_by', ARGV[7])
redis.call('ZREM', P .. 'running', ARGV[2])
-- Not later than its deadline, which it is not to wait past; at once where it was cancelled while the backend took it.
local look_at = math.min(now_ms() + tonumber(ARGV[5]), tonumber(redis.call('HGET', job, 'expires')))
if redis.call('HEXISTS', job, 'cancel') == 1 then look_at = now_ms() end
redis.call('ZADD', kept_by(ARGV[7]), whole(look_at), ARGV[2])
return 1
