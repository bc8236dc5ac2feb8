-- An operator runs a failed job again: the one way out of a final state. ARGV: prefix, id, letter, deadline ms,
--   the job as its record has it
-- Returns the state that holds now (`queued`: run it), or false when the board does not know the job.
local job, id = KEYS[1], ARGV[2]
local h = redis.call('HMGET', job, 'state', 'revived', 'about')
if h[1] == 'failed' and not h[3] then -- a rebuild has found its end, and nothing more: its record makes it anew
  redis.call('HDEL', job, 'state', 'gone', 'finished')
  return false
end
if not h[1] or not h[3] then return false end
if h[1] == 'queued' and h[2] == ARGV[3] then return h[1] end
if h[1] ~= 'failed' then return h[1] end
revive(job)
redis.call('HSET', job, 'state', 'queued', 'revived', ARGV[3], 'expires', ARGV[4])
redis.call('HSET', job, 'about', ARGV[5])
redis.call('PERSIST', job)
redis.call('ZADD', P .. 'unfinished', ARGV[4], id)
list(job, id)
return 'queued'
