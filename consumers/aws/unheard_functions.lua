-- Shared by the scripts of a tenant's calls whose end nobody has heard of. Moments are whole milliseconds, on this server's
-- clock. KEYS[1] is a sorted set, a call's name by when its result is to be looked for; KEYS[2] a hash, the name -> what is
-- known of it.

local KEEP_MS = 2 * 86400000 -- none of them lives for so long

local function whole(number)
  return string.format('%.0f', number)
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
