-- Shared by the scripts of a deployment's replicas. Moments are whole milliseconds, on this server's clock.
-- KEYS[1] is a key of the deployment's slot; every other key is ARGV[1], the prefix `{b:name}:`, and a name.
-- places:R sorted set, a call's id by the end of its lease; began:R hash, id -> 'start tenant'; used:R list of
-- 'start end tenant id tokens came', the calls that have ended and are not in the machine's bill yet (only where it has one);
-- places_still hash, when one of these scripts last ran (`at`), and if this server then stood still the last time before that
-- (`from`) and how long that is remembered (`till`).

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

-- The moment after which a lease must end to count: now, or the last sign of life before this server stood still, until
-- those who live have renewed. Who lives is heard in every third of a lease.
local function since(now, hold)
  local key = P .. 'places_still'
  local h = redis.call('HMGET', key, 'at', 'from', 'till')
  local at, from, till = tonumber(h[1] or now), tonumber(h[2] or 0), tonumber(h[3] or 0)
  local stood = now - at > hold / 2
  if stood then from, till = at, now + hold end
  if stood or not h[1] or now < at or now - at >= hold / 20 then
    redis.call('HSET', key, 'at', whole(now), 'from', whole(from), 'till', whole(till))
    redis.call('PEXPIRE', key, KEEP_MS)
  end
  return (now < till and till - now <= hold) and math.min(from, now) or now
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
