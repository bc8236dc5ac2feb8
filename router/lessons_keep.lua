-- Keep what a job was like. ARGV: job, lesson (JSON), digest of what was asked, tier, most kept,
--   ms within which the same question is a retry (0: it says nothing of others), quality ('' is unknown), by whom
-- Returns the job that this one retries, or false.
local job, digest = ARGV[1], ARGV[3]
if redis.call('HSETNX', KEYS[1], job, digest .. ' ' .. now .. ' ' .. ARGV[2]) == 0 then return false end
redis.call('ZADD', KEYS[2], now, job)
local retried, within = false, tonumber(ARGV[6])
local before = within > 0 and redis.call('HGET', KEYS[3], digest)
if before then
  local at, earlier, tier = string.match(before, '^(%d+) (%S+) (%S+)$')
  if now - tonumber(at) <= within then
    retried = earlier
    if redis.call('HEXISTS', KEYS[4], earlier .. ' ' .. tier) == 0 then note(earlier, tier, '0', 'retried') end
  end
end
if within > 0 then redis.call('HSET', KEYS[3], digest, now .. ' ' .. job .. ' ' .. ARGV[4]) end
if ARGV[7] ~= '' then note(job, ARGV[4], ARGV[7], ARGV[8]) end
local said = redis.call('GET', early(job))
if said then
  note(job, string.match(said, '^(%S+) (%S+) (%S+)$'))
  redis.call('DEL', early(job))
end
local over = redis.call('ZCARD', KEYS[2]) - tonumber(ARGV[5])
if over > 0 then
  for i, old in ipairs(redis.call('ZPOPMIN', KEYS[2], math.min(over, 100))) do
    if i % 2 == 1 then
      local kept = redis.call('HGET', KEYS[1], old)
      local asked = kept and string.match(kept, '^(%S+)')
      local last = asked and redis.call('HGET', KEYS[3], asked)
      if last and string.find(last, old, 1, true) then redis.call('HDEL', KEYS[3], asked) end
      redis.call('HDEL', KEYS[1], old)
      redis.call('HDEL', KEYS[4], old .. ' light', old .. ' heavy')
    end
  end
end
return retried
