-- The quota is granted and the upstream call comes next: count the delivery and open the attempt.
-- ARGV: prefix, id, name, owner, most deliveries, microbatch
-- Returns {'started', attempt} | {'lost'} | {'cancelled'} | {'dead', deliveries}
local job = KEYS[1]
local h = redis.call('HMGET', job, 'state', 'owner', 'cancel', 'deliveries', 'counted', 'open')
if TERMINAL[h[1] or 'rejected'] or h[2] ~= ARGV[4] then return {'lost'} end
if h[3] then return {'cancelled'} end
if h[5] == ARGV[4] and h[6] then return {'started', tonumber(h[6])} end -- this call again, as its answer was lost
local deliveries = tonumber(h[4] or 0)
if deliveries >= tonumber(ARGV[5]) then return {'dead', whole(deliveries)} end
local attempt = redis.call('HINCRBY', job, 'attempts', 1)
redis.call('HSET', job, 'state', 'running', 'deliveries', whole(deliveries + 1), 'open', attempt, 'counted', ARGV[4],
  'microbatch', ARGV[6])
redis.call('HSETNX', job, 'started', whole(now_ms()))
wake(job, ARGV[3])
return {'started', attempt}
