-- KEYS: lessons, their moments, what was asked, outcomes; all of one tenant.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Where an outcome waits that was told before its job was answered.
local function early(job)
  return KEYS[1] .. ':early:' .. job
end
local function note(job, tier, quality, by)
  redis.call('HSET', KEYS[4], job .. ' ' .. tier, quality .. ' ' .. by)
end
