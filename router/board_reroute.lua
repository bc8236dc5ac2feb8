-- The job goes on at another deployment. Its lease is given back, and what a record with an older route says is void.
-- ARGV: prefix, id, owner, how many deployments it was at, the job as it is known from now on, why the first one failed
--   ('' says nothing)
-- Returns 1 | 0 (it is another's)
local job = KEYS[1]
if redis.call('HGET', job, 'owner') ~= ARGV[3] then return 0 end
if redis.call('HGET', job, 'counted') == ARGV[3] then redis.call('HINCRBY', job, 'deliveries', -1) end
redis.call('HDEL', job, 'owner', 'lease', 'open', 'counted', 'cut')
not_submitted(job, ARGV[2])
redis.call('ZREM', P .. 'running', ARGV[2])
redis.call('HSET', job, 'state', 'queued', 'hop', ARGV[4], 'about', ARGV[5], 'not_before', whole(now_ms()))
if ARGV[6] ~= '' then redis.call('HSETNX', job, 'problem', ARGV[6]) end
return 1
