-- The backend has taken the job: no lease any more, a collector looks at it. ARGV: prefix, id, owner, reference, check in ms,
--   the job as it is known from now on (with where its body lies)
-- Returns 1 | 0 (it is another's)
local job = KEYS[1]
if redis.call('HGET', job, 'owner') ~= ARGV[3] then return 0 end
redis.call('HDEL', job, 'owner', 'lease')
redis.call('HSET', job, 'submitted', ARGV[4], 'about', ARGV[6])
redis.call('ZREM', P .. 'running', ARGV[2])
redis.call('ZADD', P .. 'submitted', whole(now_ms() + tonumber(ARGV[5])), ARGV[2])
return 1
