-- KEYS: lessons, their moments, what was asked, outcomes; all of one tenant.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function note(job, tier, quality, by)
  redis.call('HSET', KEYS[4], job .. ' ' .. tier, quality .. ' ' .. by)
end
