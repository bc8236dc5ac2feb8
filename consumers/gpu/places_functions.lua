-- Shared by the scripts of a deployment's replicas. Moments are whole milliseconds, on this server's clock.
-- KEYS[1] is a key of the deployment's slot; every other key is ARGV[1], the prefix `{b:name}:`, and a name.
-- places:R sorted set, a call's id by the end of its lease; began:R hash, id -> 'start tenant'; used:R list of
-- 'start end tenant id tokens came', the calls that have ended and are not in the machine's bill yet (only where it has one).

local P = ARGV[1]
local MOST_USED = 100000
local KEEP_MS = 86400000

local function whole(number)
  return string.format('%.0f', number)
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- A call has left the replica at `ended`; where that is known, it ran there only `from` then on.
local function leave(replica, id, ended, tokens, from)
  redis.call('ZREM', P .. 'places:' .. replica, id)
  local began = redis.call('HGET', P .. 'began:' .. replica, id)
  if not began then return end
  redis.call('HDEL', P .. 'began:' .. replica, id)
  local start, tenant = string.match(began, '^(%S+) (%S+)$')
  if from and from > tonumber(start) then start = whole(from) end
  local used = P .. 'used:' .. replica
  if redis.call('LLEN', used) < MOST_USED then
    local came = string.match(began, '^%S+')
    local span = start .. ' ' .. whole(math.max(ended, tonumber(start)))
    redis.call('RPUSH', used, span .. ' ' .. tenant .. ' ' .. id .. ' ' .. tokens .. ' ' .. came)
    redis.call('PEXPIRE', used, KEEP_MS)
  end
end
