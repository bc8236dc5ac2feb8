-- Take the run lease of a job for an owner.
-- ARGV: prefix, id, owner, lease ms, how many deployments the job was at before the one that its record names, the attempt
--   that a backend has by the record (0: none), when an operator let it run again by the record (ms, 0: never), then (only
--   when the board had lost the job) the fields to write it anew.
-- Returns {verdict, ...}: run|cancelled|expired attempts open-attempt ms-left attempts-cut-off-here; busy ms; finished state attempts; missing;
--   moved about; submitted attempt reference.
local job, id, owner, lease_ms = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local now = now_ms()
local function known()
  return redis.call('HMGET', job, 'state', 'owner', 'lease', 'cancel', 'expires', 'attempts', 'open', 'not_before', 'submitted',
    'hop', 'about', 'opened', 'cut', 'finished')
end
local h = known()
local state = h[1]
-- It ran again after it had failed, and a lost board has forgotten that.
local was_revived = state == 'failed' and h[14] and tonumber(ARGV[7]) > tonumber(h[14])
if not state or was_revived then
  if #ARGV == 7 then return {'missing'} end
  if was_revived then revive(job) end
  local fields = {'state', 'queued'}
  for i = 8, #ARGV do fields[#fields + 1] = ARGV[i] end
  redis.call('HSET', job, unpack(fields))
  redis.call('PERSIST', job) -- a rebuild may have left its charges here
  list(job, id)
  h = known()
  redis.call('ZADD', P .. 'unfinished', h[5], id)
  local waits = redis.call('HMGET', job, 'class', 'queue', 'batch')
  local batch = waits[3] and P .. 'batch:' .. waits[3]
  if batch and not was_revived and redis.call('EXISTS', batch) == 1 then redis.call('SADD', batch .. ':open', id) end
  if waits[2] == 'main' then redis.call('ZADD', P .. 'unfinished:' .. waits[1], h[5], id) end
  state = h[1]
end
if TERMINAL[state] then return {'finished', state, h[6] or '0'} end
-- The board was lost after a backend had taken an attempt that it does not know of.
local is_kept = tonumber(ARGV[6]) > tonumber(h[6] or 0)
-- The backend has it: a collector concludes it, and this record is for a board that is lost meanwhile.
if h[9] and not is_kept then return {'submitted', h[6], h[9]} end
-- It has gone on at another deployment since this record was written.
if tonumber(h[10] or 0) > tonumber(ARGV[5]) then return {'moved', h[11]} end
-- Postponed: a copy of the record waits on a retry topic, or its worker died while it was parked.
if h[8] and not h[4] and now < math.min(tonumber(h[8]), tonumber(h[5])) then
  return {'busy', whole(math.min(tonumber(h[8]), tonumber(h[5])) - now)}
end
local stamp = P .. 'stamp'
if h[2] and h[2] ~= owner then
  local left = tonumber(h[3]) - now
  if left > 0 then return {'busy', whole(left)} end
  -- The lease ran out. If this server stood still meanwhile, its owner gets one more lease to renew.
  local s = redis.call('HMGET', stamp, 'at', 'grace')
  local grace = tonumber(s[2] or 0)
  if now - tonumber(s[1] or now) > 5000 then
    grace = now + lease_ms
    redis.call('HSET', stamp, 'grace', whole(grace))
  end
  redis.call('HSET', stamp, 'at', whole(now))
  if grace > now then return {'busy', whole(grace - now)} end
end
redis.call('HSET', stamp, 'at', whole(now))
-- Its owner died in the call. Where it had kept its lease for half a lease by then, the call is less likely to be why.
if h[2] and h[2] ~= owner and h[7] and h[12] then
  redis.call('HDEL', job, 'opened')
  if tonumber(h[3]) - lease_ms - tonumber(h[12]) >= lease_ms / 2 then
    redis.call('HINCRBY', job, 'deliveries', -1)
    redis.call('HINCRBY', job, 'late', 1)
  end
end
redis.call('HSET', job, 'owner', owner, 'lease', whole(now + lease_ms))
redis.call('ZADD', P .. 'running', whole(now + lease_ms), id)
if is_kept then
  not_submitted(job, id)
  redis.call('ZREM', P .. 'unpublished', id)
  redis.call('HSET', job, 'state', 'running', 'attempts', ARGV[6], 'open', ARGV[6], 'unreserved', ARGV[6])
  redis.call('HSETNX', job, 'started', whole(now))
  state, h[6], h[7] = 'running', ARGV[6], ARGV[6]
end
if state == 'accepting' then
  redis.call('HSET', job, 'state', 'queued')
  redis.call('ZREM', P .. 'unpublished', id)
end
local verdict = 'run'
if h[4] then verdict = 'cancelled' elseif now >= tonumber(h[5]) then verdict = 'expired' end
return {verdict, h[6] or '0', h[7] or '', whole(tonumber(h[5]) - now), h[13] or '0'}
