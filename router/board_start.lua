-- The quota is granted and the upstream call comes next: count the delivery and open the attempt.
-- ARGV: prefix, id, name, owner, most deliveries, microbatch
-- Returns {'started', attempt} | {'lost'} | {'cancelled'} | {'expired'} | {'dead', deliveries}
local job = KEYS[1]
local LATE = 3 -- deaths long after the call began count as one
local h = redis.call('HMGET', job, 'state', 'owner', 'cancel', 'deliveries', 'counted', 'open', 'late', 'expires')
if TERMINAL[h[1] or 'rejected'] or h[2] ~= ARGV[4] then return {'lost'} end
if h[3] then return {'cancelled'} end
if h[5] == ARGV[4] and h[6] then return {'started', tonumber(h[6])} end -- this call again, as its answer was lost
if now_ms() >= tonumber(h[8]) then return {'expired'} end -- while it waited to be let through
local deliveries, late = tonumber(h[4] or 0), tonumber(h[7] or 0)
if deliveries + math.floor(late / LATE) >= tonumber(ARGV[5]) then return {'dead', whole(deliveries + late)} end
local attempt = redis.call('HINCRBY', job, 'attempts', 1)
redis.call('HSET', job, 'state', 'running', 'deliveries', whole(deliveries + 1), 'open', attempt, 'counted', ARGV[4],
  'microbatch', ARGV[6], 'opened', whole(now_ms()))
redis.call('HSETNX', job, 'started', whole(now_ms()))
wake(job, ARGV[3])
return {'started', attempt}
